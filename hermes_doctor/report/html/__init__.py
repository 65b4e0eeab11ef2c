"""`--format html`: one page for a person that needs nothing but itself."""
