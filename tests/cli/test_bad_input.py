"""Bad input: each kind gets one message with a hint, an exit code, and no traceback."""

import pytest

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def good(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

def seven():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

def raises():
    raise ValueError("planted")

def no_module():
    return "a model"

class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, images):
        raise RuntimeError("planted in forward")

def tensors(labels):
    return TensorDataset(torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor(labels))

def good_data():
    return tensors([0, 1] * 20)

def negative_label():
    return tensors([0, 1] * 19 + [0, -1])

class Map:
    num_classes = 3

    def __init__(self, bad=None):
        self.bad = bad

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.ones(1, 8, 8) * index / 40, 3 if index == self.bad else index % 3

def late_label():
    return Map(bad=39), Map()

def good_map():
    return Map(), Map()
"""


@pytest.fixture
def own(write):
    return write("my.py", OWN)


def runs_made(folder):
    return list(folder.glob("runs/*/*"))


def refused(answer, folder, message, hint=""):
    """Check that a command was refused before it left anything behind."""
    assert (answer.code, answer.message) == (2, message)
    assert answer.hint.startswith(hint)
    assert answer.out == ""
    assert runs_made(folder) == []


def test_the_valid_arguments_that_each_case_changes_are_accepted(train, own, elsewhere):
    assert train(f"--model={own}:good", f"--data={own}:good_data", "--global-batch=18", "--lr=0.1").code == 0
    assert len(runs_made(elsewhere)) == 1


def test_unknown_model(run, elsewhere):
    answer = run("train", "--model=resnet2O")
    refused(answer, elsewhere, "there is no model resnet2O", "did you mean resnet20? (known: cnn, fastnet, gpt-micro, ")


def test_unknown_data_set(run, elsewhere):
    refused(run("train", "--data=digit"), elsewhere, "there is no data set digit", "did you mean digits?")


def test_unknown_config_key(run, write, elsewhere):
    file = write("a.toml", "epoch = 3")
    answer = run("train", "--config", file)
    refused(answer, elsewhere, f"{file}: epoch is not a setting", "did you mean epochs?")


def test_wrong_config_value(run, write, elsewhere):
    file = write("a.toml", 'epochs = "three"')
    refused(run("train", "--config", file), elsewhere, f'{file}: epochs: expected a whole number, got "three"')


def test_missing_config_file(run, elsewhere):
    refused(run("train", "--config=no.toml"), elsewhere, "cannot read no.toml: No such file or directory")


def test_epochs_0(run, elsewhere):
    refused(run("train", "--epochs=0"), elsewhere, "--epochs is 0, but must be at least 1")


def test_batch_0(run, elsewhere):
    refused(run("train", "-b", "0"), elsewhere, "--global-batch is 0, but must be at least 1")


def test_batch_larger_than_the_data(train, elsewhere):
    message = "--global-batch 5,000 is larger than the 1,293 training samples"
    refused(train("-b", "5000"), elsewhere, message, "use --global-batch 1293 or less")


def test_negative_lr(run, elsewhere):
    refused(run("train", "--lr", "-0.1"), elsewhere, "--lr is -0.1, but must be a number above 0")


def test_resume_of_a_folder_that_is_no_run(run, elsewhere):
    refused(run("train", "--resume", elsewhere), elsewhere, f"{elsewhere} is not a run: it has no config.toml")


def test_resume_of_nothing(run, own_run):
    answer = run("train", "--resume=demi")
    assert (answer.code, answer.message) == (2, "there is no run demi")
    assert answer.hint == "did you mean demo? (known: demo)"


def test_resume_of_a_finished_run(run, own_run):
    answer = run("train", "--resume", own_run.path)
    assert (answer.code, answer.message) == (2, f"{own_run.path} has finished: 2 epochs, 22 steps")
    assert answer.hint == f"to train longer, add --epochs 4; to start over, use --config {own_run.config}"


def test_resume_with_another_model(run, own_run):
    answer = run("train", "--resume", own_run.path, "--model=cnn", "--epochs=3")
    assert (answer.code, answer.message) == (2, f"{own_run.path} was trained with --model mlp, not cnn")
    assert answer.hint == "drop --model to resume this run, or drop --resume to start another"


def test_resume_with_bits_that_another_batch_norm_made(run, own_run):
    answer = run("train", "--resume", own_run.path, "--exact=bitwise", "--epochs=3")
    expected = f"{own_run.path} was trained with --batch-norm local, not ghost, which --exact bitwise needs"
    assert (answer.code, answer.message) == (2, expected)
    assert answer.hint == "drop --exact to resume this run, or drop --resume to start another"


def test_resume_with_own_model_whose_code_has_changed(run, train, own, write, elsewhere):
    assert train(f"--model={own}:good", "--name=own").code == 0
    assert run("eval", "own").code == 0
    write("my.py", OWN.replace("nn.Linear(64, num_classes)", "nn.Linear(64, 9), nn.Linear(9, num_classes)"))
    message = f"the checkpoint does not fit the model: 1.weight is 10×64 in the checkpoint, but is 9×64 in {own}:good"
    for words in (["train", "--resume=own", "--epochs=3"], ["eval", "own"]):
        answer = run(*words)
        assert (answer.code, f"paceline: {message}\n" in answer.err) == (2, True)
        assert answer.hint.startswith("restore the code it was trained with (copies are in code/ in the run folder)")


def test_runs_dir_that_cannot_be_written(train, write, elsewhere):
    file = write("taken", "a file, since root may write to any folder")
    message = f"cannot create a run folder in {file}/digits-mlp: Not a directory"
    refused(train("--runs-dir", file), elsewhere, message, "choose another folder with --runs-dir")


def test_own_model_with_the_wrong_number_of_classes(train, own, elsewhere):
    answer = train(f"--model={own}:seven")
    refused(answer, elsewhere, f"{own}:seven returns 7 classes, the data has 10", "end the model with 10 outputs")


def test_own_model_that_raises(train, own, elsewhere):
    answer = train(f"--model={own}:raises")
    refused(answer, elsewhere, f"{own}:raises raised ValueError: planted", f"{own}, line 13")


def test_own_model_that_raises_in_forward(train, own, elsewhere):
    message = f"{own}:Fails cannot take images of 1×8×8 (channels × height × width): RuntimeError: planted in forward"
    refused(train(f"--model={own}:Fails"), elsewhere, message)


def test_own_model_that_is_no_module(train, own, elsewhere):
    message = f"{own}:no_module returned an object of type str, not a torch.nn.Module"
    refused(train(f"--model={own}:no_module"), elsewhere, message, "return the model itself")


def test_label_out_of_range(train, own, elsewhere):
    answer = train(f"--data={own}:negative_label", "-b", "18")
    refused(answer, elsewhere, f"{own}:negative_label: item 39 has label -1, but there are 2 classes")


@pytest.mark.parametrize("workers", [0, 1])
def test_label_out_of_range_that_shows_only_when_it_is_read(train, own, workers):
    assert train(f"--data={own}:good_map", "-b", "18", "--valid-split=0", f"--workers={workers}").code == 0
    answer = train(f"--data={own}:late_label", "-b", "18", "--valid-split=0", f"--workers={workers}")
    assert (answer.code, answer.message) == (2, f"{own}:late_label: item 39 has label 3, but there are 3 classes")
    assert answer.hint.startswith("labels must be between 0 and 2")


def test_a_loss_that_is_not_finite(train, run):
    answer = train("--lr=1e30", "--schedule=constant", "--name=nan")
    assert answer.code == 3
    assert answer.message.startswith("the loss became ")
    assert " at step " in answer.message
    assert answer.hint == "try a lower --lr, a --warmup of a few epochs, --clip 1, or --precision fp32"
    assert "FAILED" in run("runs").out


def test_a_superfluous_or_missing_flag_or_argument(run):
    assert run("train", "--epocs=3").message == "Unknown option: --epocs. Did you mean --epochs?"
    assert run("train", "mlp").message == 'train does not take "mlp"'
    assert run("train", "--epochs").message == "--epochs needs a value"
    assert run("eval").message == "eval needs RUN"
    assert run("runs", "compare", "a").message == "runs compare needs SECOND"
    assert run("eval", "a", "--split=vaild").message == '--split: expected one of train, valid, test, got "vaild"'
    assert run("trian").message.startswith('Unknown command "trian". Did you mean "train"?')


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["train", "--mode=DDPP"], '--mode: expected one of auto, single, dp, ddp, fsdp, got "DDPP"', ""),
        (["train", "--exact=bit-wise"], '--exact: expected one of order, bitwise, got "bit-wise"', "use bitwise"),
        (["train", "--output=x"], "Unknown option: --output.", "use --runs-dir"),
        (["train", "--frobnicate"], "Unknown option: --frobnicate.", "to list its flags: paceline train --help"),
        (["train", "--devices=1"], "--devices 1 chooses GPUs, but this rank trains on the CPU", "drop it"),
        (["train", "--max-restarts=2"], "--max-restarts 2 has no effect: Paceline starts no ranks here that it could "
         "restart", "add --nproc"),
        (["train", "--device=gpu"], "there is no device gpu", "use cuda"),
        (["train", "resnet20"], 'train does not take "resnet20"', "settings are flags, as in --model resnet20"),
        (["eval"], "eval needs RUN", "to list the runs: paceline runs; then: paceline eval NAME"),
        (["submit", "--", "--qos", "high"], "paceline submit has no flag --qos", "give sbatch its own options with"),
    ],
)  # fmt: skip
def test_habits_from_elsewhere_are_answered_with_what_to_type(run, elsewhere, words, message, hint):
    refused(run(*words), elsewhere, message, hint)


def test_a_folder_given_as_data_and_yaml_given_as_settings_are_named(run, write, elsewhere):
    (elsewhere / "pics").mkdir()
    refused(
        run("train", "--data=pics"), elsewhere, "there is no data set pics", "to use this folder: --data folder:pics"
    )
    file = write("settings.yaml", "epochs: 3")
    answer = run("train", f"--config={file}")
    assert answer.message.startswith(f"{file} is not valid TOML: ")
    assert answer.hint.startswith("settings are TOML: a line such as epochs = 3")


def test_a_checkpoint_given_as_a_run_is_named(run, own_run):
    answer = run("eval", "runs/demo/001/checkpoints/step-00000022")
    assert answer.message == "runs/demo/001/checkpoints/step-00000022 is a checkpoint, not a run"
    assert answer.hint.endswith("paceline eval runs/demo/001 --checkpoint step-00000022")


def test_a_shorter_length_than_a_stopped_run_has_trained_is_refused(run, own_run):
    state = own_run.rank(0).read_text(encoding="utf-8")
    own_run.rank(0).write_text(state.replace("FINISHED", "STOPPED"), encoding="utf-8")
    answer = run("train", f"--resume={own_run.path}", "--epochs=1")
    assert answer.message == f"{own_run.path} has trained 2 epochs, 22 steps, more than the 11 steps asked for"
