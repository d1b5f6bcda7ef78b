"""Who computes, and under which promise."""
