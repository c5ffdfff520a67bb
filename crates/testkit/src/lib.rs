//! Virtual-time network and fake devices for tests.
