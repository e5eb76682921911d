"""Charts of measured results, in the style of the drawings; :mod:`tools.docs.charts.all_charts` lists them."""
