"""`paceline recipes`: list the recipes that ship with Paceline, or show one."""

from paceline.core.errors import ExitCode
from paceline.core.recipes import find_recipe, list_recipes
from paceline.report.tables import table


def recipes_command(name: str | None = None, /) -> int:
    """List the recipes for `paceline train --recipe NAME`, or show the settings of one and what it reaches.

    Parameters
    ----------
    name
        Recipe to show.
    """
    if name is not None:
        print(find_recipe(name).path.read_text(encoding="utf-8"), end="")
        return ExitCode.FINISHED
    print(table(["recipe", "for"], [[recipe.name, recipe.title] for recipe in list_recipes()]))
    print("\npaceline recipes NAME shows one; paceline train --recipe NAME trains with it; other flags go on top")
    return ExitCode.FINISHED
