"""Settings: defaults < file < environment < flags, errors that name the place, and files that read back."""

import dataclasses
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import cli
from paceline.core.config import CHANGEABLE, CHOICES_OF_TRACK, SETTINGS, Config, flag
from paceline.core.errors import ConfigError, SettingError
from paceline.core.interval import Interval
from paceline.core.load import KNOWN, load_config, write_config

pytestmark = pytest.mark.usefixtures("elsewhere")
HELP = "paceline --help, or paceline COMMAND --help, lists what there is"


@pytest.fixture
def file(tmp_path):
    """Return a function that writes settings.toml and returns its path."""

    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def seen(monkeypatch):
    """Return the list of settings that the command line hands to training; nothing is trained."""
    configs = []

    def remember(settings, **_others):
        configs.append(settings)
        raise ConfigError("seen")

    monkeypatch.setattr("paceline.commands.train.train", remember)
    return configs


def refusal(capsys, words, environ=None):
    """Run a command that must be refused, and return its message and hint."""
    assert cli.run(["train", *words], environ or {}) == 2
    message, _, hint = capsys.readouterr().err.strip().partition("\n  hint: ")
    return message.removeprefix("paceline: "), hint


def test_each_layer_wins_over_the_one_below(file, seen):
    path = file('epochs = 2\nlr = 0.2\nmodel = "mlp"')
    words = ["train", "--config", str(path), "--epochs", "4"]
    cli.run(words, {"PACELINE_EPOCHS": "3", "PACELINE_LR": "0.3", "HOME": "/"})
    (config,) = seen
    assert (config.epochs, config.lr, config.model, config.global_batch) == (4, 0.3, "mlp", 128)


def test_without_any_layer_there_are_the_defaults(seen):
    cli.run(["train"], {})
    assert seen == [Config()]


def test_earlier_files_win(tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("epochs = 1")
    second.write_text("epochs = 2\nseed = 2")
    config = load_config(first, second)
    assert (config.epochs, config.seed) == (1, 2)


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (["-e", "7"], "epochs", 7),
        (["-b", "1_024"], "global_batch", 1024),
        (["-m", "cnn"], "model", "cnn"),
        (["--track", "tensorboard,wandb"], "track", ("tensorboard", "wandb")),
        (["--track", "tensorboard", "--track", "wandb"], "track", ("tensorboard", "wandb")),
        (["--track", "none"], "track", ()),
        (["--schedule", "milestones", "--milestones", "60,120"], "milestones", (60, 120)),
        (["--no-channels-last"], "channels_last", False),
        (["--no-decay-norm"], "no_decay_norm", True),
        (["--decay-norm"], "no_decay_norm", False),
        (["--save-every", "500 steps"], "save_every", Interval(500, "step")),
        (["--lr", "1e-3"], "lr", 0.001),
        (["--runs-dir", "/a/b"], "runs_dir", Path("/a/b")),
    ],
)
def test_flags_are_read_as_people_write_them(seen, words, setting, value):
    cli.run(["train", *words], {})
    assert getattr(seen[0], setting) == value


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("track = []", "track", ()),
        ('track = "none"', "track", ()),
        ('track = ["tensorboard", "wandb"]', "track", ("tensorboard", "wandb")),
        ('schedule = "milestones"\nmilestones = [60, 120]', "milestones", (60, 120)),
        ("save_every = 2", "save_every", Interval(2)),
        ("global-batch = 64", "global_batch", 64),
        ("lr = 1", "lr", 1.0),
        ("compile = true", "compile", True),
    ],
)
def test_files_are_read_as_people_write_them(file, text, setting, value):
    assert getattr(load_config(file(text)), setting) == value


def test_the_environment_reads_lists_and_booleans_too():
    environ = {"PACELINE_TRACK": "tensorboard,wandb", "PACELINE_COMPILE": "true", "PACELINE_EVAL_EVERY": "5 steps"}
    config = load_config(environ=environ)
    assert (config.track, config.compile, config.eval_every) == (("tensorboard", "wandb"), True, Interval(5, "step"))


def test_an_unknown_flag_is_refused_with_the_nearest(capsys):
    assert refusal(capsys, ["--epocs", "3"]) == ("Unknown option: --epocs. Did you mean --epochs?", HELP)


def test_an_unknown_key_names_file_and_nearest(capsys, file):
    path = file("global_bach = 3")
    expected = (f"{path}: global_bach is not a setting", "did you mean global_batch?")
    assert refusal(capsys, ["--config", str(path)]) == expected


def test_an_unknown_variable_is_refused_with_the_nearest(capsys):
    expected = ("PACELINE_EPOCH is not a setting", "did you mean PACELINE_EPOCHS?")
    assert refusal(capsys, [], {"PACELINE_EPOCH": "3"}) == expected


PLACES = [
    pytest.param("flag", id="flag"),
    pytest.param("file", id="file"),
    pytest.param("environment", id="environment"),
]


def told(place, setting, text, file):
    """Return words, environment and the name of the place, for a value given in that place."""
    if place == "flag":
        return [f"{flag(setting)}={text}"], {}, flag(setting)
    if place == "environment":
        name = f"PACELINE_{setting.upper()}"
        return [], {name: text}, name
    path = file(f'{setting} = "{text}"')
    return ["--config", str(path)], {}, f"{path}: {setting}"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ("epochs", "1.5", "a whole number"),
        ("steps", "many", "a whole number"),
        ("lr", "fast", "a number"),
        ("momentum", "x", "a number"),
        ("compile", "maybe", "true or false"),
        ("optimizer", "sdg", "one of sgd, adam, adamw"),
        ("save_every", "2 days", '1 (epochs), "2 epochs" or "500 steps"'),
        ("milestones", "60,a", "whole numbers, such as 60,120"),
    ],
)
def test_a_bad_type_names_the_place_and_what_was_expected(capsys, file, place, setting, text, expected):
    words, environ, name = told(place, setting, text, file)
    message, _ = refusal(capsys, words, environ)
    assert message == f'{name}: expected {expected}, got "{text}"'


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("setting", "text", "problem"),
    [
        ("epochs", "0", "is 0, but must be at least 1"),
        ("global_batch", "0", "is 0, but must be at least 1"),
        ("workers", "-1", "is -1, but must be at least 0"),
        ("momentum", "nan", "is nan, but must be at least 0"),
        ("warmup", "inf", "is inf, but must be a finite number"),
        ("lr", "-0.1", "is -0.1, but must be a number above 0"),
        ("lr", "inf", "is inf, but must be a number above 0"),
        ("valid_split", "1", "is 1.0, but must be at least 0 and below 1"),
        ("ema", "-1", "is -1.0, but must be at least 0 and below 1"),
        ("track", "tensorbord", 'names "tensorbord"'),
        ("augment", "crop4,flipp", "has no step flipp"),
        ("augment", "erase25", "erase25: 25 is not between 0 and 1"),
        ("image_size", "0", "is 0, but must be at least 1"),
        ("run", "a/b", 'is "a/b", which is not a folder name'),
    ],
)
def test_a_value_out_of_range_names_the_place(capsys, file, place, setting, text, problem):
    words, environ, name = told(place, setting, text, file)
    message, _ = refusal(capsys, words, environ)
    assert message == f"{name} {problem}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = [1, 2]", 'epochs: expected a whole number, got "1, 2"'),
        ("epochs = true", 'epochs: expected a whole number, got "true"'),
        ("compile = 3", 'compile: expected true or false, got "3"'),
    ],
)
def test_a_toml_value_of_another_type_is_refused(capsys, file, text, message):
    path = file(text)
    assert refusal(capsys, ["--config", str(path)])[0] == f"{path}: {message}"


def test_a_table_is_refused_since_settings_are_flat(capsys, file):
    path = file("[model]\nname = 3")
    assert refusal(capsys, ["--config", str(path)]) == (
        f"{path}: [model] is a table, but settings are flat",
        "write model = …",
    )


def test_a_file_that_is_no_toml_is_refused_with_the_line(capsys, file):
    path = file("epochs = \n")
    message, _ = refusal(capsys, ["--config", str(path)])
    assert message.startswith(f"{path} is not valid TOML: Invalid value (at line 1")


def test_a_file_that_is_not_there_is_refused(capsys, tmp_path):
    path = tmp_path / "no.toml"
    assert refusal(capsys, ["--config", str(path)])[0] == f"cannot read {path}: No such file or directory"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--schedule", "milestones"], "--schedule milestones needs to know when", "add --milestones 60,120,160"),
        (["--milestones", "3"], "--milestones is set, but --schedule is cosine", "add --schedule milestones"),
        (
            ["--schedule", "milestones", "--milestones", "5,3"],
            "--milestones is [5, 3], but must be rising epoch numbers from 1 on",
            "",
        ),
        (
            ["--global-batch", "4", "--accumulate", "5"],
            "--global-batch 4 cannot be computed in 5 parts",
            "use --accumulate 4 or less",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(capsys, words, message, hint):
    assert refusal(capsys, words) == (message, hint)


def test_a_config_that_exists_is_valid():
    with pytest.raises(SettingError, match=r"^--epochs is 0, but must be at least 1$"):
        Config(epochs=0)
    with pytest.raises(SettingError, match=r"^--epochs is 0"):
        dataclasses.replace(Config(), epochs=0)


def test_resolving_writes_out_what_is_derived():
    resolved = Config(model="my.py:build", data="digits", optimizer="adam").resolved()
    assert (resolved.lr, resolved.run) == (0.001, "digits-my")
    assert resolved.resolved() == resolved


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        ("digits", "none"),
        ("cifar10", "crop4,flip"),
        ("folder:/pictures", "resized-crop,flip"),
        ("packed:/set.pack", "resized-crop,flip"),
        ("my.py:build", "none"),
    ],
)
def test_the_usual_augmentation_depends_on_the_data(data, policy):
    assert Config(data=data).augment_policy == policy
    assert Config(data=data).resolved().augment == policy
    assert Config(data=data, augment="crop1").augment_policy == "crop1"


def test_a_misspelt_step_is_answered_with_the_nearest(capsys):
    _, hint = refusal(capsys, ["--augment", "flipp"])
    assert hint.startswith("did you mean flip?")


@pytest.mark.parametrize(
    ("data", "name"),
    [("folder:/a/pictures", "pictures"), ("folder:pictures/", "pictures"), ("packed:/a/set.pack", "set.pack")],
)
def test_a_run_on_a_folder_or_a_pack_is_named_after_it(data, name):
    assert Config(data=data, model="cnn").run_name == f"{name}-cnn"


def test_every_changeable_setting_is_a_setting():
    assert set(SETTINGS) > CHANGEABLE


above_0 = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
from_0 = st.floats(min_value=0, allow_infinity=False)
fraction = st.floats(0, 1, exclude_max=True)
whole = st.integers(1, 10**12)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
folder = text.filter(lambda name: "/" not in name and not name.startswith(("-", ".")))
words = st.sampled_from(
    ["none", "null", "true", "1", "-5", "--lr", "a b", "a,b", '"', "\\", "[]", "ö\n", "my.py:build"]
)
interval = st.builds(Interval, whole, st.sampled_from(["epoch", "step"]))


FREE = {
    "data": text | words, "data_dir": (text | words).map(Path), "valid_split": fraction, "workers": st.integers(0, 99),
    "augment": st.sampled_from(["standard", "none", "crop4,flip", "rand-m9-mstd0.5-inc1, erase0.25"]),
    "image_size": st.none() | whole, "bad_images": st.sampled_from(["fail", "skip"]),
    "model": text | words, "precision": st.sampled_from(["fp32", "bf16", "fp16"]), "channels_last": st.booleans(),
    "compile": st.booleans(), "ema": st.none() | fraction, "epochs": whole, "steps": st.none() | whole,
    "patience": st.none() | whole, "seed": st.integers(0, 2**64),
    "optimizer": st.sampled_from(["sgd", "adam", "adamw"]), "lr": st.none() | above_0, "momentum": from_0,
    "weight_decay": from_0, "no_decay_norm": st.booleans(), "label_smoothing": fraction, "clip": st.none() | above_0,
    "decay_every": whole, "decay_rate": above_0, "warmup": from_0,
    "lr_scaling": st.sampled_from(["none", "linear", "sqrt"]), "reference_batch": whole,
    "device": st.sampled_from(["auto", "cpu", "cuda:1"]), "threads": st.none() | whole,
    "run": folder | st.sampled_from(["none", "null", "1", "true", "a b"]), "runs_dir": text.map(Path),
    "track": st.lists(st.sampled_from(CHOICES_OF_TRACK), unique=True).map(tuple), "log_every": whole,
    "eval_every": interval, "save_every": interval, "keep": whole, "save_async": st.booleans(),
    "bucket_mb": st.none() | above_0, "profile": st.booleans(),
    "mode": st.sampled_from(["auto", "single", "dp", "ddp", "fsdp"]), "shards": whole,
    "batch_norm": st.sampled_from(["local", "sync"]), "check_replicas": st.none() | whole,
    "compress": st.sampled_from(["none", "fp16", "bf16", "powersgd"]),
}  # fmt: skip
BOUND = {"global_batch", "accumulate", "schedule", "milestones", "exact"}


@st.composite
def configs(draw):
    batch = draw(whole)
    milestones = tuple(sorted(draw(st.sets(whole, max_size=4))))
    schedule = "milestones" if milestones else draw(st.sampled_from(["constant", "step", "cosine", "one-cycle"]))
    free = draw(st.fixed_dictionaries(FREE))
    accumulate = draw(st.integers(1, batch))
    if draw(st.booleans()):
        accumulate = 1
        free |= {"exact": "bitwise", "mode": "ddp", "batch_norm": "ghost", "compile": False, "compress": "none"}
    return Config(global_batch=batch, accumulate=accumulate, schedule=schedule, milestones=milestones, **free)


@settings(max_examples=50)
@given(configs())
def test_settings_that_were_written_read_back_the_same(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    write_config(config, path)
    assert load_config(path) == config


def test_the_round_trip_covers_every_setting():
    """A setting that is added must be added to the strategy too."""
    assert FREE.keys() | BOUND == set(SETTINGS)


@settings(max_examples=30)
@given(st.text(string.ascii_lowercase + "_", min_size=1).filter(lambda key: key not in KNOWN))
def test_no_unknown_key_is_ignored(tmp_path_factory, key):
    path = tmp_path_factory.getbasetemp() / "unknown.toml"
    path.write_text(f"{key} = 1")
    with pytest.raises(ConfigError, match=r"is not a setting$"):
        load_config(path)


def test_a_file_may_hold_how_to_start_too(tmp_path):
    path = tmp_path / "start.toml"
    path.write_text("devices = [0, 1]\nnproc = 2\nepochs = 3")
    assert load_config(path).epochs == 3
    path.write_text("nproc = [1, 2]")
    with pytest.raises(ConfigError, match=r'nproc: expected a whole number, got "1, 2"'):
        load_config(path)
