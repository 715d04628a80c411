"""The parts of `datamodules.pack`: sources, duplicates, shards, and the work shared out.

What is to be packed is listed first (`sources`), equal files are dropped (`duplicates`), and which
image goes into which shard is fixed.  Then shards are written (`shardwriter`) by any number of
workers (`workers`) inside a hidden directory that survives a crash (`workplace`).
"""
