"""`paceline seal` and `paceline check` at the command line."""

import json

import torch


def test_all_checkpoints_of_a_run_are_checked_and_a_damaged_one_is_named(run, own_run):
    answer = run("check", own_run.path)
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == ["intact"] * 2
    path = own_run.checkpoints / "step-00000022" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    answer = run("check", own_run.path)
    assert answer.code == 1
    damaged = answer.out.splitlines()[1]
    assert damaged.startswith(f"damaged  {path.parent}: model.safetensors has changed since it was written")
    assert json.loads(run("check", path.parent, "--json").out)[0]["problems"]


def test_anyones_folder_can_be_sealed_and_checked(run, elsewhere):
    (elsewhere / "theirs").mkdir()
    torch.save({"w": torch.ones(3)}, elsewhere / "theirs" / "model.pt")
    answer = run("check", "theirs")
    assert (answer.code, answer.message) == (2, "theirs has no manifest.json")
    assert answer.hint == "to give it one: paceline seal theirs"
    assert run("seal", "theirs").out.startswith("sealed theirs: 1 file, ")
    assert run("check", "theirs").code == 0
    with (elsewhere / "theirs" / "model.pt").open("ab") as file:
        file.write(b"x")
    assert (run("check", "theirs").code, run("seal", "theirs").code) == (1, 1)
