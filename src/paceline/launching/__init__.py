"""Starting ranks: as processes of torch.distributed.run, without importing torch."""
