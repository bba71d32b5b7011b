"""What a run tells people: events as JSON lines, folded into a story, shown live or as lines."""
