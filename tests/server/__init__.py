"""The extension of Jupyter's server, against a server that really runs."""
