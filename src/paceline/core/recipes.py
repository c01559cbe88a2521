"""The recipes that ship with Paceline: named sets of settings, which the user's settings override."""

from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import ConfigError, suggestion

FOLDER = Path(__file__).parent.parent / "recipes"


class Recipe(NamedTuple):
    """A file of settings that starts with a comment on its purpose and its accuracy."""

    name: str
    path: Path

    @property
    def title(self) -> str:
        """Return the first line of the comment."""
        return self.path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def list_recipes() -> list[Recipe]:
    """Return every recipe, by name."""
    return [Recipe(path.stem, path) for path in sorted(FOLDER.glob("*.toml"))]


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name."""
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    if name not in recipes:
        raise ConfigError(f"there is no recipe {name}", hint=suggestion(name, recipes))
    return recipes[name]
