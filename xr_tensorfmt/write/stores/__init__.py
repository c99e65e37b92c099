"""Writing into stores: one ordered upload, complete or not at all."""
