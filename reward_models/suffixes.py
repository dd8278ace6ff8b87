"""How files of pictures and of videos end. Apart from their reader, so that files are found without torch."""

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
VIDEO_SUFFIXES = (".mp4", ".webm", ".mov", ".m4v", ".mkv", ".avi")
