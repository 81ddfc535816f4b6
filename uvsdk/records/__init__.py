"""Records: as bytes (:mod:`~uvsdk.records.codec`), as JSON, and as they pass to another process or are copied."""
