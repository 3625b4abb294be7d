"""`bottomless top`: samples of a server, folded into rates, shown on a terminal."""
