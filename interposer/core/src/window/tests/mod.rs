//! The whole window in virtual time: controller, markers and throttle against a card that is a model.

mod card;
mod converging;
mod rules;
mod threads;
