"""The folder of a run and its checkpoints, without a training that wrote them."""

from paceline.records.folder import RunFolder, make_inner
from paceline.records.manifest import file_facts, write_manifest


def started(runs_dir):
    """Make the folder of a run that has not saved yet."""
    path = runs_dir / "r" / "001"
    path.mkdir(parents=True)
    folder = make_inner(RunFolder(path))
    folder.config.write_text("")
    return folder


def saved(folder, step):
    """Make a checkpoint of two files."""
    path = folder.checkpoint(step)
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"x" * 1000)
    write_manifest(path, {"files": {"model.safetensors": file_facts(path / "model.safetensors").as_dict()}})
