"""Child processes: the environment that they inherit."""

from paceline.launching.child import inherited


def test_child_processes_inherit_neither_our_settings_nor_options_of_torchrun():
    environ = {"PATH": "/bin", "PACELINE_LR": "1", "PET_NNODES": "2", "PET_NODE_RANK": "0", "PETS": "cat"}
    assert inherited(environ) == {"PATH": "/bin", "PETS": "cat"}
