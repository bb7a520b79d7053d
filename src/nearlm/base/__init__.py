"""What everything rests on: errors, atomic files, resumable jobs, mapped arrays, progress. Knows nothing of LMs."""
