"""Vision-language models behind a chat server as judges."""
