"""What is known of a run before its model is loaded: its configuration, downloads, prompts and rewards."""
