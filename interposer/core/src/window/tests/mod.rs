//! Tests of the whole window in virtual time: controller, markers and launch window with a model of a card.

mod card;
mod converging;
mod ending;
mod rules;
mod threads;
