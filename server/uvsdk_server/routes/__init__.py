"""HTTP in, HTTP out: one module per noun of the address."""
