"""What reward_models and diffrl both stand on: messages, errors, files, tables and options."""
