"""A profile with given times, without measuring anything."""

from paceline.records.profile import LinkPoint, Profile, ProfiledBucket, RankSteps

STEPS = RankSteps(
    data=(0.1, 0.1), copy=(0.0, 0.0), forward=(1.0, 1.2), backward=(2.0, 2.0),
    grad_sync=(0.5, 0.7), update=(0.1, 0.1), step=(3.7, 4.1),
)  # fmt: skip
PROFILE = Profile(
    world_size=2,
    ranks_per_node=(1, 1),
    mode="ddp",
    backend="gloo",
    device="cpu",
    model="resnet20",
    precision="fp32",
    compress="none",
    parameters=10,
    gradient_bytes=40,
    global_batch=8,
    samples_per_rank=4,
    accumulate=1,
    threads=1,
    free=(STEPS, STEPS),
    real=(STEPS, STEPS),
    buckets=(ProfiledBucket(bytes=40, ready=1.5, ready_real=1.6, done_real=2.5),),
    link=(LinkPoint(bytes=4, in_flight=1, samples=(0.1, 0.3, 0.2)),),
    latency=0.1,
    bandwidth=1e6,
)
