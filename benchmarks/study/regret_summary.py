def page(rows, of):
    return ""
