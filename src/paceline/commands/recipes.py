"""`paceline recipes`: list the built-in recipes, or show one."""

from paceline.core.errors import ExitCode
from paceline.core.recipes import find_recipe, list_recipes
from paceline.core.units import table


def recipes_command(name: str | None = None, /) -> int:
    """List the recipes for `paceline train --recipe NAME`, or show the settings and the accuracy of one.

    Parameters
    ----------
    name
        Recipe to show.
    """
    if name is not None:
        print(find_recipe(name).path.read_text(encoding="utf-8"), end="")
        return ExitCode.FINISHED
    print(table(["recipe", "for"], [[recipe.name, recipe.title] for recipe in list_recipes()]))
    print(
        "\nto show one: paceline recipes NAME; to train with it: paceline train --recipe NAME; other flags override it"
    )
    return ExitCode.FINISHED
