"""What the ranks of a run are, gathered once, for whoever explains their times later."""

import os

import torch

from paceline.engine.job import Job
from paceline.parallel.team import Team
from paceline.records.phases import RankFacts


def facts_of_ranks(job: Job, team: Team, *, first_step: int) -> RankFacts:
    """Return what explaining the times of a run takes. Collective: every rank must call it."""
    own = (team.world.host, torch.get_num_threads(), len(os.sched_getaffinity(0)))
    hosts, threads, cores = (list(values) for values in zip(*team.gather(own), strict=True))
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    return RankFacts(
        first_step=first_step,
        hosts=hosts,
        threads=threads,
        cores=cores,
        mode=job.choice.mode,
        device=job.device.type,
        parameters=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        global_batch=job.plan.global_batch,
        num_devices=job.num_devices,
    )
