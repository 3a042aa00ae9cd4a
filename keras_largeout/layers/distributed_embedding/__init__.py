"""`DistributedEmbedding`: many tables and features in one layer."""
