"""`paceline explain`: where the time of a run goes, its bottlenecks, and suggestions."""
