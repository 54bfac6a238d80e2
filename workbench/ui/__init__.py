"""Defines the notebook's widgets. It is the only package that imports ipywidgets and anywidget;
importing it starts nothing.
"""
