"""The notebook's face. The only package that imports ipywidgets and anywidget; importing it starts nothing."""
