"""Tars that can only be read from front to back: lists of URLs, commands, somebody's shards.

``body`` opens their bytes, ``samples`` walks, groups and shuffles them in webdataset's pipeline,
``batches`` decodes, and ``streamed`` is the Lightning data module.
"""
