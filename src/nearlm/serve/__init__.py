"""HTTP server and inspector page (extra `serve`)."""
