"""Looking into shards: images are decoded, measured and compared with what the manifest says.

`blocks` measures some samples of one shard and can be sent to another process; `survey` goes
through all shards that way, and `findings` puts together what was seen.  `datamodules.indexing`
makes a manifest of that, `look` a description.
"""
