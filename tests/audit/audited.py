"""Auditing scripts on ranks that fork from one process, which costs a second each."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.environment import child_environment
from paceline.audit.audit_run import ATTACHED
from paceline.audit.evidence import Evidence
from paceline.audit.finding import Finding
from paceline.audit.judge import judge_evidence
from paceline.observe.attachment import Attachment
from paceline.observe.journals import read_journals
from tests.conftest import LONGEST

SCRIPTS = Path(__file__).parent / "scripts"
SERVER = Path(__file__).parent / "rank_server.py"


def audit_scripts(folder: Path, scripts: Mapping[str, str]) -> dict[str, list[Finding]]:
    """Run scripts, given as text by name, and return the findings in each."""
    jobs = []
    for name, text in scripts.items():
        journals = folder / name / "journals"
        journals.mkdir(parents=True)
        (folder / name / "train.py").write_text(text)
        jobs.append(
            {"folder": str(folder / name), "journals": str(journals), "script": str(folder / name / "train.py")}
        )
    variables = {
        "_PACELINE_PART": "paceline_audit.collectors",
        "_PACELINE_EARLY": "paceline_audit.early",
        "_PACELINE_STUCK": "1",
        "_PACELINE_DEBUG": "1",
        "OMP_NUM_THREADS": "1",
    }
    (folder / "journals").mkdir()
    attachment = Attachment(journals=folder / "journals", variables=variables, folders=[ATTACHED])
    environ = attachment.environment(child_environment())
    command = [sys.executable, str(SERVER), json.dumps(jobs)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=2 * LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    return {name: findings_in(folder / name) for name in scripts}


def findings_in(folder: Path) -> list[Finding]:
    """Return the findings of one script."""
    evidence = Evidence(journals=read_journals(folder / "journals"), code=0, folder=os.path.realpath(folder))
    assert evidence.world_size == 2, (folder / "output-0.txt").read_text()
    return judge_evidence(evidence).findings


def audit(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `paceline audit` as a process."""
    command = [sys.executable, "-m", "paceline", "audit", *args]
    environ = child_environment(OMP_NUM_THREADS="1")
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )
