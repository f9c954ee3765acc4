"""Files that lie, by format: what each is, and the code word that it gets. Rooms and commands use them alike."""
