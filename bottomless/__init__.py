"""What users import and type: the client library and the command line."""
