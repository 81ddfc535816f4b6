"""The class matrix, one unit row per user, and what the methods that keep one share: the server's rows (``server``),
the device's own vector (``client``, torch), the spreadout with its neighbours, label sets with their correlation.
"""
