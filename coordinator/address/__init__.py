"""What an address is called, of which kind it is and where its messages go."""
