"""`paceline recipes`: list the built-in recipes, or show one."""

import json
import tomllib
from typing import Annotated

from cyclopts import Parameter

from paceline.core.errors import ExitCode
from paceline.core.recipes import find_recipe, list_recipes
from paceline.core.units import fitted_table


def recipes_command(
    name: str | None = None, /, *, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
) -> int:
    """List the recipes for `paceline train --recipe NAME`, or show the settings and the accuracy of one.

    Parameters
    ----------
    name
        Recipe to show.
    as_json
        Print one JSON object per recipe.
    """
    if as_json:
        for recipe in list_recipes() if name is None else [find_recipe(name)]:
            settings = tomllib.loads(recipe.path.read_text(encoding="utf-8"))
            print(json.dumps({"recipe": recipe.name, "title": recipe.title, "settings": settings}))
        return ExitCode.FINISHED
    if name is not None:
        print(find_recipe(name).path.read_text(encoding="utf-8"), end="")
        return ExitCode.FINISHED
    print(fitted_table(["recipe", "for"], [[recipe.name, recipe.title] for recipe in list_recipes()]))
    print(
        "\nto show one: paceline recipes NAME; to train with it: paceline train --recipe NAME; other flags override it"
    )
    return ExitCode.FINISHED
