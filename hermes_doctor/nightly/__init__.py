"""What goes on from one scan to the next: the history of what was found, and what is not to be heard of for a while."""
