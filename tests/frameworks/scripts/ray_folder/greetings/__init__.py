GREETING = "hello from a folder"
