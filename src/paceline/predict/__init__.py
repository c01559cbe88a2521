"""`paceline predict`: simulate a step on other ranks, links and batches, from a profile or a model spec."""
