"""From a name or a folder to clients' data: data sets, ways to deal them to clients, ways to make groups differ."""
