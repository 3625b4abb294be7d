"""HTTP: parse, call the Log, render. No storage knowledge."""
