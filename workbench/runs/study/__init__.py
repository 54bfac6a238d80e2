"""The folder of a study: what it holds, how it is read, and how workers and users write into it."""
