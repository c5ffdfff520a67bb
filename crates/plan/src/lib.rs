//! Which device runs which stage, with which schedule: measured profiles in, a plan and its reasons out.
