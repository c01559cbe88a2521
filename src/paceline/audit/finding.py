"""Rules and findings: a finding is a rule, a line of the script, and what was seen there."""

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["wrong", "slow", "note"]
LEVELS: tuple[Level, ...] = ("wrong", "slow", "note")
"""wrong: changes a result or can hang; slow: wastes work; note: depends on what the author wants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A rule that the script breaks at a line."""

    rule: "Rule"
    level: Level
    file: str
    """Relative to the working directory of the command where possible; empty if no line is known."""
    line: int
    seen: str
    """What was seen, with the numbers."""

    @property
    def place(self) -> str:
        """Its place for people and editors."""
        return f"{self.file}:{self.line}" if self.file else "the command"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {
            "rule": self.rule.name,
            "level": self.level,
            "file": self.file,
            "line": self.line,
            "seen": self.seen,
            "effect": self.rule.effect,
            "fix": self.rule.fix,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A mistake that scripts make."""

    name: str
    level: Level
    summary: str
    effect: str
    """What it does to the result."""
    wrong: str
    """An example of the mistake, in code."""
    fix: str
    """The same without it."""

    def at(self, site: str, seen: str, *, level: Level | None = None) -> Finding:
        """Return a finding at a line, given as "file:line"."""
        file, _, line = site.rpartition(":")
        return Finding(
            rule=self, level=level or self.level, file=file, line=int(line) if line.isdigit() else 0, seen=seen
        )
