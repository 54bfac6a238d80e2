"""The notebook's widgets. The only package that imports ipywidgets and anywidget; importing it starts nothing."""
