"""Learning together: messages, aggregation and the algorithms, numpy only (torch in ``algorithms/*/client.py``)."""
