"""The exercises: one folder of 07_challenge/exercises each, described by its exercise.toml."""
import dataclasses
import pathlib
import tomllib

CHALLENGE = pathlib.Path(__file__).resolve().parent.parent
EXERCISES = CHALLENGE / "exercises"
ROOT = CHALLENGE.parent


@dataclasses.dataclass(frozen=True)
class Check:
    name: str
    points: int
    hint: str
    more: str


@dataclasses.dataclass(frozen=True)
class Exercise:
    name: str
    title: str
    lesson: str
    minutes: int
    needs: str
    skeleton: list  # the checks that the untouched file fails, each with the name of its hint where that is not the check's own: "meets stopped"
    checks: tuple
    hints: dict  # a typical mistake -> (hint, second hint)

    @property
    def folder(self):
        return EXERCISES / self.name

    @property
    def solution(self):
        return (self.folder / "solution.cpp").read_text()

    @property
    def points(self):
        return sum(check.points for check in self.checks)

    def wrong_answers(self):
        return sorted(self.folder.glob("wrong_*.inc"))


def read(folder):
    with open(folder / "exercise.toml", "rb") as file:
        said = tomllib.load(file)
    hints = {name: (hint["hint"], hint["more"]) for name, hint in said.pop("hints", {}).items()}
    checks = tuple(Check(**check) for check in said.pop("check"))
    return Exercise(name=folder.name, checks=checks, hints=hints, **said)


def load():
    return [read(path.parent) for path in sorted(EXERCISES.glob("*/exercise.toml"))]


class Unknown(Exception):
    """Not the name of an exercise."""


def pick(words, exercises):
    """The exercises that these words mean: a name, a part of it that only one has, or the path of its file."""
    picked = []
    for word in words:
        stem = pathlib.Path(word).stem
        found = [e for e in exercises if e.name == stem] or [e for e in exercises if stem and stem in e.name]
        if len(found) != 1:
            raise Unknown(f"{word!r} is {'no exercise' if not found else 'not one exercise but ' + str(len(found))}")
        picked += [e for e in found if e not in picked]
    return picked
